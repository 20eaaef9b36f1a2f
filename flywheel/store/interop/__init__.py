"""Import demonstrations of published data sets, and export the training stores."""
