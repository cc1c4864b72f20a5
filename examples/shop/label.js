// Numbers the parcels 1, 2, 3 and so on. What it stores and what it returns are committed
// together, once for each message: no number is missing, and none is given twice.
function handle(message) {
  const order = JSON.parse(message.text);
  const number = Number(state.get("parcels") ?? 0) + 1;
  state.put("parcels", String(number));
  return JSON.stringify({ order: order.id, label: "parcel " + number });
}
