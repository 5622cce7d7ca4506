"""The page of `report`: tables and plots of the results in folders, as one HTML file."""
