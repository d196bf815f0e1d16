"""Files of weights, wherever they come from: packages, the hub, safetensors."""
