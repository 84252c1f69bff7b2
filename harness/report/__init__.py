"""What is told: records, tables, pictures, pages."""
