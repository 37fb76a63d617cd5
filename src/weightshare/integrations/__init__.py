"""Weight sharing inside the training loops of other libraries; each module needs its library."""
