# Short names for the two scripts; CONTRIBUTING.md has the rest.

demo:
	scripts/demo

test:
	scripts/test

.PHONY: demo test
