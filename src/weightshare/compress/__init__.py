"""Files and models that shrink: distinct values once, and indices into them."""
