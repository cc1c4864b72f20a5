# The worker's side of a process pool (lifecycle-go/procpool), in one file.
#
#   require_relative "lifecycle_worker"
#
#   LifecycleWorker.serve do |query|
#     work(query.payload) do |part|
#       raise LifecycleWorker::Cancelled if query.cancelled?
#       query.send_part(part)
#     end
#     { done: true }
#   end
#
# The block gets one query at a time, in the main thread, unless serve is told of a
# concurrency. What it returns is the result. What it sends before that are messages.
# An exception is sent as the query's error, and the worker goes on; only SystemExit
# and Interrupt end it. JSON.generate encodes all of it; NaN and the infinities are
# errors, because JSON does not have them.
#
# query.bytes has the bytes that the caller sent beside the payload, such as an image.
# To answer with bytes, return a Data or send one:
#
#   LifecycleWorker::Data.new({ width: 200 }, png)
#
# The worker is ready once on_startup has returned, so that is the place to load a model.
# on_shutdown runs after the last query. Then the interpreter ends as that of any program
# does: at_exit blocks run and files are flushed, within the pool's ShutdownGrace.
#
#   LifecycleWorker.serve(on_startup: -> { load }, on_shutdown: -> { close }) { |query| ... }
#
# The protocol has its own socket, so the block may print.
# Needs Ruby 3.0 or later and nothing else. docs/reference/procpool-wire.md has the protocol.

require "json"
require "socket"

module LifecycleWorker
  # A block raises it when its query was cancelled.
  class Cancelled < StandardError; end

  # This process was not started by a pool.
  class NoPool < StandardError; end

  # The message is longer than the pool accepts. It was not sent.
  class TooLong < StandardError; end

  # The pool's process answered a call with an error.
  class CallError < StandardError; end

  # The query has its answer, so nothing more can be sent for it.
  class Answered < StandardError; end

  # A value with bytes beside it, a String, which are sent as they are. Do not change
  # them afterwards.
  Data = Struct.new(:value, :bytes)

  # How deep a payload may be nested.
  DEPTH = 10_001

  # One query. Its methods may be called from any thread.
  class Query
    attr_reader :id, :payload, :bytes, :metadata, :traceparent, :tracestate
    # The Process.clock_gettime(Process::CLOCK_MONOTONIC) at which the pool cancels it,
    # nil when it has not said.
    attr_reader :deadline
    attr_accessor :answered # for the worker

    def initialize(worker, message, bytes)
      @worker = worker
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @cancelled = false
      @id = message["requestId"]
      @payload = message["payload"]
      @bytes = bytes # beside the payload, "" for none
      @metadata = message.fetch("metadata", {})
      @traceparent = message.fetch("traceparent", "")
      @tracestate = message.fetch("tracestate", "")
      @deadline = message["timeoutMs"] && LifecycleWorker.now + message["timeoutMs"] / 1000.0
    end

    # Whether the pool has cancelled the query.
    def cancelled?
      @cancelled
    end

    # Waits up to so many seconds. Returns true as soon as the query is cancelled.
    def wait_cancelled(seconds)
      till = LifecycleWorker.now + seconds
      @lock.synchronize do
        until @cancelled || (left = till - LifecycleWorker.now) <= 0
          @changed.wait(@lock, left)
        end
        @cancelled
      end
    end

    # For the worker.
    def cancel
      @lock.synchronize do
        @cancelled = true
        @changed.broadcast
      end
    end

    # Tells the pool the worker's own id of the work.
    def session(session_id)
      @worker.write({ type: "session", requestId: @id, sessionId: session_id.to_s }, query: self)
    end

    # Sends a part of the answer. Waits while the caller has enough to read.
    def send_part(content)
      @worker.write_value("message", self, :content, content)
    end

    # Asks the pool's process something and returns its answer. Raises CallError when it
    # answers with an error, also because the query has ended.
    def call(method, params = nil)
      @worker.call(self, method.to_s, params)
    end
  end

  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # The text of an exception, even when its message raises.
  def self.describe(err)
    "#{err.class}: #{err.message}".encode("UTF-8", invalid: :replace, undef: :replace).scrub
  rescue StandardError
    err.class.to_s
  end

  class Worker # :nodoc: all
    # The beginning of a query, to find the id of one whose payload is not readable.
    QUERY = /\A\{"type":"query","requestId":("(?:[^"\\]|\\.)+"),(?:"bytes":(\d+),)?/n

    def initialize(connection, max_frame, concurrency, handler)
      @connection = connection
      @max_frame = max_frame
      @concurrency = concurrency
      @handler = handler
      @writing = Mutex.new
      @state = Mutex.new # guards the variables below
      @running = {}
      @queries = 0
      @calls = {}
      @last_call = 0
      @began = LifecycleWorker.now
      @todo = Queue.new
    end

    def ready
      write({ type: "ready", capabilities: %w[stacks bytes], concurrency: @concurrency })
    end

    def write(message, query: nil, bytes: nil)
      line = JSON.generate(message, max_nesting: DEPTH) << "\n"
      # JSON.generate returns text whose encoding may be wrong: it does not look at all.
      raise ArgumentError, "it is not UTF-8" unless line.valid_encoding?

      size = line.bytesize + (bytes ? bytes.bytesize + 1 : 0)
      raise TooLong, "a message of #{size} bytes is longer than the limit of #{@max_frame}" if size > @max_frame

      @writing.synchronize do
        raise Answered, "the query has been answered" if query&.answered

        bytes ? @connection.write(line, bytes, "\n") : @connection.write(line)
      end
    end

    def write_value(type, query, field, value)
      bytes = nil
      if value.is_a?(Data)
        bytes = value.bytes
        raise ArgumentError, "the bytes are no String" unless bytes.nil? || bytes.is_a?(String)

        bytes = nil if bytes == ""
        value = value.value
      end
      message = { type: type, requestId: query.id }
      message[:bytes] = bytes.bytesize if bytes
      message[field] = value
      write(message, query: type == "message" ? query : nil, bytes: bytes)
    end

    # Answers with an error, cut to what fits.
    def fail(request_id, text)
      write({ type: "error", requestId: request_id, error: text })
    rescue TooLong
      raise if text.empty?

      text = text[0, text.length / 2]
      retry
    end

    def call(query, method, params)
      answer = Queue.new
      id = @state.synchronize do
        raise CallError, "the pool is gone" if @calls.nil?

        @last_call += 1
        @calls[@last_call.to_s] = answer
        @last_call.to_s
      end
      begin
        write({ type: "call", requestId: query.id, callId: id, method: method, params: params }, query: query)
        reply = answer.pop
      ensure
        @state.synchronize { @calls&.delete(id) }
      end
      raise CallError, "#{method}: #{reply["error"]}" if reply.key?("error")

      reply["result"]
    end

    # The reader's thread: takes every message, but runs no handler.
    def read
      begin
        read_all
      rescue StandardError, SystemStackError => e # a worker that does not read must end
        warn "lifecycle_worker: the pool is gone: #{LifecycleWorker.describe(e)}"
      end
      gone
    end

    def read_all
      while (line = @connection.gets("\n"))
        break unless line.end_with?("\n") # a truncated line: the pool is gone
        next if line.strip.empty?

        message = parse(line)
        length = message.fetch("bytes", 0)
        bytes = String.new
        if length.positive?
          bytes = @connection.read(length)
          break if bytes.nil? || bytes.bytesize < length || @connection.read(1) != "\n"
        end
        take(message, bytes)
      end
    end

    # Ruby does not read all that is JSON. That is the query's error.
    def parse(line)
      JSON.parse(line.force_encoding("UTF-8"), max_nesting: DEPTH)
    rescue JSON::ParserError, EncodingError, SystemStackError => e
      start = QUERY.match(line.b)
      raise if start.nil?

      fail(JSON.parse(start[1].force_encoding("UTF-8")), "the payload: #{LifecycleWorker.describe(e)[0, 500]}")
      { "bytes" => start[2].to_i }
    end

    def gone
      waiting = @state.synchronize do
        @running.each_value(&:cancel)
        calls = @calls
        @calls = nil
        calls
      end
      waiting&.each_value { |answer| answer << { "error" => "the pool is gone" } }
      @todo << nil
      # End the process even when the block ignores the cancellation: no other process
      # would.
      Thread.new do
        sleep 2
        exit!(1)
      end
    end

    def take(message, bytes)
      id = message["requestId"]
      case message["type"]
      when "query" then take_query(message, bytes)
      when "cancel"
        @state.synchronize { @running[id]&.cancel }
      when "health_check"
        done = @state.synchronize { @queries }
        write({ type: "health_ok", uptime: (LifecycleWorker.now - @began).round(3), queriesProcessed: done })
      when "reply"
        @state.synchronize { @calls&.fetch(message["callId"], nil)&.push(message) }
      when "dump" then show_stacks
      when "shutdown"
        @state.synchronize { @running.each_value(&:cancel) } unless message["graceful"]
        @todo << :shutdown
      end
      # Other types are from a newer pool.
    end

    def take_query(message, bytes)
      id = message["requestId"]
      return unless id.is_a?(String) && !id.empty?
      return fail(id, "a query without payload") unless message.key?("payload")

      query = @state.synchronize do
        unless @running.size >= @concurrency || @running.key?(id)
          @running[id] = Query.new(self, message, bytes)
        end
      end
      query ? @todo << query : fail(id, "busy with #{@concurrency} queries")
    end

    def show_stacks
      text = Thread.list.reject { |t| t == Thread.current }.map { |t| "#{t.inspect}:\n#{(t.backtrace || []).join("\n")}\n" }.join[0, 16 << 10]
      begin
        write({ type: "stacks", stacks: text })
      rescue TooLong
        text = text[0, text.length / 2]
        retry unless text.empty?
      end
    end

    # Runs queries until the end, and returns the exit code.
    def work
      threads = []
      while (query = @todo.pop)
        if query == :shutdown
          threads.each(&:join)
          write({ type: "shutdown_ack" })
          return 0
        end
        if @concurrency == 1
          handle(query)
          next
        end
        threads.select!(&:alive?)
        threads << Thread.new(query) { |q| handle_in_thread(q) }
      end
      1
    end

    def handle_in_thread(query)
      handle(query)
    rescue Exception => e # the connection failed, or the block ends the process
      warn "lifecycle_worker: #{LifecycleWorker.describe(e)}"
      exit!(1)
    end

    def handle(query)
      result = failed = nil
      begin
        result = @handler.call(query)
      rescue Cancelled
        failed = "cancelled"
      rescue SystemExit, Interrupt, SignalException
        raise
      rescue Exception => e # any error of the block
        failed = LifecycleWorker.describe(e)
      end
      @writing.synchronize { query.answered = true }
      @state.synchronize do # before the pool can send the next one
        @running.delete(query.id)
        @queries += 1
      end
      return fail(query.id, failed) if failed

      begin
        write_value("complete", query, :result, result)
      rescue SystemCallError, IOError
        raise # the connection failed
      rescue StandardError, SystemStackError => e # the result is not JSON or is too long
        fail(query.id, "the result: #{LifecycleWorker.describe(e)}")
      end
    end
  end

  # Connects to the pool, or takes the connection that the pool has made.
  def self.connect
    fd = ENV["LIFECYCLE_WORKER_FD"]
    return UNIXSocket.for_fd(fd.to_i).tap { |s| s.close_on_exec = true } if fd && !fd.empty?

    path = ENV["LIFECYCLE_WORKER_SOCKET"]
    raise NoPool, "this process was not started by a pool: neither LIFECYCLE_WORKER_SOCKET nor LIFECYCLE_WORKER_FD is set" if path.nil? || path.empty?

    UNIXSocket.new(path)
  end

  # Has the kernel kill this process when its parent dies (prctl(2)). The pool asks for
  # that when it has started this process itself. This is for a worker behind a shell.
  def self.die_with_parent(connection)
    return unless RUBY_PLATFORM.include?("linux")

    pool = connection.getsockopt(Socket::SOL_SOCKET, Socket::SO_PEERCRED).data.unpack1("i")
    return if pool == Process.ppid

    require "fiddle"
    long = Fiddle::TYPE_LONG
    prctl = Fiddle::Function.new(Fiddle::Handle::DEFAULT["prctl"], [Fiddle::TYPE_INT, long, long, long, long], Fiddle::TYPE_INT)
    prctl.call(1, Signal.list["KILL"], 0, 0, 0) # PR_SET_PDEATHSIG
  rescue LoadError, StandardError => e
    warn "lifecycle_worker: no parent-death signal: #{describe(e)}"
  end

  # Ends this process when the pool's does, also while a block computes in Ruby.
  def self.hold_lifeline
    fd = ENV["LIFECYCLE_WORKER_LIFELINE"]
    return if fd.nil? || fd.empty?

    pipe = IO.for_fd(fd.to_i, "rb", autoclose: false)
    Thread.new do
      pipe.read(1)
      Process.kill(:KILL, Process.pid)
    end
  rescue SystemCallError => e
    warn "lifecycle_worker: no lifeline: #{describe(e)}"
  end

  # Answers queries with the block until the pool sends shutdown, then exits with code 0.
  # Exits with code 1 when the pool is gone. Raises NoPool when there is no pool.
  #
  # With a concurrency of more than 1 the worker takes so many queries at a time, up to
  # 1000, each in a thread of its own.
  #
  # on_startup is called before the worker is ready; what it raises ends the process.
  # on_shutdown is called after the last query, also when the pool is gone.
  def self.serve(concurrency: 1, on_startup: nil, on_shutdown: nil, &handler)
    $stdout.sync = true # what was printed is not lost in a crash
    connection = connect
    connection.sync = true
    connection.binmode
    die_with_parent(connection)
    hold_lifeline
    on_startup&.call
    worker = Worker.new(connection, ENV.fetch("LIFECYCLE_WORKER_MAX_FRAME", (16 << 20).to_s).to_i, concurrency, handler)
    worker.ready
    Thread.new { worker.read }
    begin
      code = worker.work
    rescue SystemCallError, IOError => e
      warn "lifecycle_worker: the pool is gone: #{e.message}"
      code = 1
    end
    on_shutdown&.call
    exit(code)
  end
end
