"""What a model is turned into: functions to call, draws, scores."""
