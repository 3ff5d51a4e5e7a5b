"""What a user would pick instead, each as a program of its own: a job in, the dev score of every rate out."""
