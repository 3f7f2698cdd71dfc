"""What the fleet has cost, for those who pay: bills of a month as files."""
