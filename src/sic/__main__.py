"""`python -m sic`."""

from sic.cli.main import main

if __name__ == "__main__":
    main()
