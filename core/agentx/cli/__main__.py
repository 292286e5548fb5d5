"""`python -m agentx.cli` is `agentx`."""

from . import main

if __name__ == "__main__":
    main()
