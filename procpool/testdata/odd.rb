# A worker in Ruby that does what it should not.

require_relative "../sdk/ruby/lifecycle_worker"

# Undescribable has a message that raises.
class Undescribable < StandardError
  def message
    raise "no text"
  end
end

LifecycleWorker.serve do |query|
  op = query.payload.is_a?(Hash) ? query.payload["op"] : query.payload
  case op
  when "pid" then Process.pid
  when "deaf-pid"
    query.send_part(Process.pid)
    sleep
  when "spin-pid"
    query.send_part(Process.pid)
    sleep 0.05
    ("a" * 60) =~ /^(a|a)*b/ # computes in C code
  when "nan" then Float::NAN
  when "send nan" then query.send_part(Float::NAN)
  when "deep" then 20_000.times.reduce(1) { |inner, _| [inner] }
  when "mute" then raise Undescribable
  when "pipe" then raise Errno::EPIPE, "of the handler's own"
  when "cancel" then raise LifecycleWorker::Cancelled
  when "throw" then throw :nowhere
  when "long" then "x" * (2 << 20)
  when "send long" then query.send_part("x" * (2 << 20))
  when "long error" then raise "x" * (2 << 20)
  when "not UTF-8" then "\xff"
  when "raise not UTF-8" then raise "\xff"
  when "no bytes" then LifecycleWorker::Data.new(1, 2)
  when "memory" then raise NoMemoryError, "the handler's own"
  when "recursion" then (f = ->(n) { f.(n + 1) + 1 }).(0)
  when "behind"
    before, $query = $query, query
    before ? before.send_part(1) : "left behind"
  else query.payload
  end
end
