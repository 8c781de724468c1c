"""What special statements mean, in plainer ones that every target has."""
