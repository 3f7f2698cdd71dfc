-- ARGV: file (JSON)
write_file(cjson.decode(ARGV[1]))
return 1
