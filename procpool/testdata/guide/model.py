import numpy
from lifecycle_worker import serve

weights = None


def load():
    global weights
    weights = numpy.array([[1, 2], [3, 4]], "float32")  # torch.load, InferenceSession: 20 s


def predict(q):
    return q.array() @ weights  # an array in, an array out


if __name__ == "__main__":  # multiprocessing imports this file again
    serve(predict, on_startup=load)
