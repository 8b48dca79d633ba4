export { h, render, Fragment } from "preact";
export { useState, useEffect, useRef, useMemo, useCallback } from "preact/hooks";
import { h } from "preact";
import htm from "htm";
export const html = htm.bind(h);
export { layout, Graph } from "@dagrejs/dagre";
