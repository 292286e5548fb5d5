"""The plugins that every installation has. They use public names only, and each can be disabled."""
