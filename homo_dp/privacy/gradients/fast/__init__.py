"""The fast path: clipped sums by one pass over the model, layer by layer, without per-sample
gradients.
"""
