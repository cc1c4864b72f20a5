require_relative "lifecycle_worker"

LifecycleWorker.serve do |query|
  words = query.payload["text"].split
  words.each do |word|
    raise LifecycleWorker::Cancelled if query.cancelled?
    query.send_part(word.upcase)
  end
  { words: words.length }
end
