"""One table of operators: ONNX and ATen rows, sizes, floating-point operations. Enter by `lookup`."""
