"""A process that says where its scratch directory is, and answers nothing."""

import os

if __name__ == "__main__":
    print(f"scratch: {os.environ['WEIR_SCRATCH']}")
