from polytempo_client.cli import main

main()
