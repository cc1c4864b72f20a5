from lifecycle_worker import Cancelled, serve


def handle(q):
    for word in q.payload["text"].split():
        if q.cancelled:  # the caller gave up, or the deadline passed
            raise Cancelled
        q.send(word.upper())  # a message: the caller reads it at once
    return {"words": len(q.payload["text"].split())}  # the result


if __name__ == "__main__":  # multiprocessing imports this file again
    serve(handle)
