"""The plugins that every installation has: ordinary plugins on public names of agentx, and each can be disabled."""
