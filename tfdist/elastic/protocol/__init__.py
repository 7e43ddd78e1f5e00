"""How the processes of an elastic job find each other, and agree on generations."""
