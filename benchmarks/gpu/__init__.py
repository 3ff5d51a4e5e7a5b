"""How near the training loop comes to the machine, and how it stands to the Trainer; needs no Ray and no MLflow."""
