"""What is known of expressions without running them: bounds, normal forms, who has which value."""
