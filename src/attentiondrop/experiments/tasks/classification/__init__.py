"""Image classification, with models of timm."""
