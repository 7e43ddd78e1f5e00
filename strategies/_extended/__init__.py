"""The extended classes of the strategies: TensorFlow calls these, and users the strategies."""
