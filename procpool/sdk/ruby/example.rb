# A worker in Ruby, with the same questions as the other examples.

require_relative "lifecycle_worker"

LifecycleWorker.serve(concurrency: Integer(ARGV.fetch(0, "1"))) do |query|
  ask = query.payload.is_a?(Hash) ? query.payload : {}
  case ask["op"]
  when "count"
    query.session("session of #{query.id}")
    ask["n"].times do |i|
      raise LifecycleWorker::Cancelled if query.cancelled?

      query.send_part(i)
    end
    ask["n"]
  when "sleep"
    raise LifecycleWorker::Cancelled if query.wait_cancelled(ask["seconds"])

    "slept"
  when "fail"
    raise "failed: #{ask["text"]}"
  when "exit"
    warn "about to exit"
    exit!(ask["n"])
  when "call" # ask the pool's process
    query.call(ask["text"], ask["value"])
  when "about"
    { metadata: query.metadata, traceparent: query.traceparent, tracestate: query.tracestate, deadline: !query.deadline.nil? }
  when "pid"
    Process.pid
  else
    LifecycleWorker::Data.new(query.payload, query.bytes)
  end
end
