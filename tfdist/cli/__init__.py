"""The command `tfdist`: one file for each command, with its options."""
