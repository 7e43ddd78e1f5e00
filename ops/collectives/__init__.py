"""Collectives: the communicator and the functions that call its ops."""
