"""The tasks of a job on several hosts: one agent on each, which the launcher starts over ssh."""
