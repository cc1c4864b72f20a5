// A client in TypeScript: its types come from the OpenAPI document.
import createClient from "openapi-fetch";
import type { paths } from "./schema";

declare const process: { argv: string[] };

const api = createClient<paths>({ baseUrl: process.argv[2] });

function must<T>(what: string, answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${what}: ${answer.response.status} ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

const at = { path: { type: "drone-survey", id: "m-00001" } };
const got = await api.GET("/workflows/{type}/{id}", { params: at });
const entity = must("get", got);
const etag = got.response.headers.get("ETag") ?? "";
const again = await api.GET("/workflows/{type}/{id}", { params: { ...at, header: { "If-None-Match": etag } } });
console.log("again:", again.response.status);

const moved = must("transition", await api.POST("/workflows/{type}/{id}/transition", {
  params: { ...at, header: { "If-Match": etag } },
  body: { phase: "flying", note: "by TypeScript" },
}));
console.log("from:", moved.from);
const stale = await api.POST("/workflows/{type}/{id}/transition", {
  params: { ...at, header: { "If-Match": etag } },
  body: { phase: "landing" },
});
console.log("stale:", stale.response.status);

const page = must("list", await api.GET("/workflows/{type}", { params: { path: { type: "drone-survey" }, query: { phase: "flying", pageSize: 10 } } }));
console.log("listed:", (page.entities ?? []).map((e) => e.id).join(","), "was:", entity.phase);
