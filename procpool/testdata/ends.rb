# A worker that keeps a file open. at_exit writes its last line.

require_relative "../sdk/ruby/lifecycle_worker"

out = File.open(File.join(ENV.fetch("ENDS"), Process.pid.to_s), "w") # its buffer is larger than what is written
at_exit do
  sleep if ENV["HANG"]
  out.puts("exit")
end

LifecycleWorker.serve(on_startup: -> { out.puts("startup") }, on_shutdown: -> { out.puts("shutdown") }) do |query|
  out.puts("query")
  puts "line #{query.payload}"
  exit!(3) if query.payload == "die"
  Process.pid
end
