# An application for puma.
run ->(_env) { [200, { "content-type" => "text/plain" }, ["ok\n"]] }
