"""What takes long to prove of the DynamoDB store."""
