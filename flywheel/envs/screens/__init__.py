"""Draw synthetic screens, with questions about them and exact answers, for general data and pretraining."""
