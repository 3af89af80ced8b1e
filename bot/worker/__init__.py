"""The untrusted process: runs the tree under test, fills given slots, knows no verdict."""
