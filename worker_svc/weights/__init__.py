"""From safetensors files to the tensors of a decoder."""
