"""ONNX files in: inference models become training steps, training models stay what they are. Enter by `importer`."""
