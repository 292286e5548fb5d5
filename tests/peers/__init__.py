"""Other ends of the wire: servers that tests start on this machine."""
