# usage: client.rb CLIENT URL WORKERS SECONDS PAUSE_MS, with CLIENT net-http
require 'json'
require 'net/http'

url = URI(ARGV[1])
workers, seconds, pause = Integer(ARGV[2]), Float(ARGV[3]), Float(ARGV[4]) / 1000
began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
puts 'began'
$stdout.flush
elapsed = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) - began }
lock = Mutex.new
sent = 0
open = 0
at = Hash.new { |h, k| h[k] = [] }
fail_with = ->(text) { lock.synchronize { at[text.gsub(/127\.0\.0\.1[: ]\d+|port \d+/, 'ADDR')] << (elapsed.call * 1000).round } }

threads = Array.new(workers) do |i|
  Thread.new do
    post = i.odd?
    http = nil
    while elapsed.call < seconds
      lock.synchronize { sent += 1; open += 1 }
      begin
        # start keeps the connection for the requests that follow.
        unless http
          http = Net::HTTP.new(url.host, url.port)
          http.use_ssl = url.scheme == 'https'
          http.start
        end
        res = post ? http.post('/', 'x' * 100) : http.get('/')
        fail_with.call("status #{res.code}") if res.code != '200'
      rescue StandardError => e
        fail_with.call("#{e.class} #{e.message}")
        http.finish if http&.started?
        http = nil
        sleep 0.02
      end
      lock.synchronize { open -= 1 }
      post = !post
      sleep(rand * pause)
    end
  end
end
threads.each { |t| t.join([seconds + 8 - elapsed.call, 0.01].max) }
open.times { fail_with.call('no answer') }
errors = at.transform_values(&:size)
puts JSON.generate(sent: sent, failed: errors.values.sum, errors: errors, at: at, note: "Ruby #{RUBY_VERSION}")
$stdout.flush
exit!(0)
