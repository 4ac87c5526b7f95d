"""What processes of a job hold at their peak, beside the plan's memory of them."""
