"""Looking at jobs: the flight recorder, and what explains its files."""
