"""The command `tfdist`: starts the tasks of a job and watches them."""
