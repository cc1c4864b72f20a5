"""Prices a basket: {"item": "tea", "quantity": 3} costs 1200 cents."""

from lifecycle_worker import serve

CENTS = {"tea": 400, "coffee": 700, "cup": 1200}


def handle(q):
    item, quantity = q.payload["item"], q.payload["quantity"]
    if item not in CENTS:
        raise ValueError("the shop has no %r" % item)
    if not 1 <= quantity <= 100:
        raise ValueError("a quantity is 1 to 100")
    return CENTS[item] * quantity


if __name__ == "__main__":
    serve(handle)
