"""What watches a run: callbacks of one's own, and trackers that log it to TensorBoard, MLflow or Weights & Biases."""
