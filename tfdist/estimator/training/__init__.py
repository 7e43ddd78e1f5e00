"""How a task trains and evaluates an `Estimator`."""
