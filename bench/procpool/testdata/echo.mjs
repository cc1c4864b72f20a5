import workerpool from "workerpool";

workerpool.worker({ echo: (payload) => payload });
