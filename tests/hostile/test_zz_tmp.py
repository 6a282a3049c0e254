import json, time
from typing import Any
import pytest
from starlette.responses import JSONResponse, Response
from tests.integration.faulty_service import FaultyService, TASK
from tests.integration.conftest import *
from tests.integration.test_service_runs import serve, request, finished, trials
SECRET='Bearer s3cret-credential-of-mine'
def deep(n): return '['*n+']'*n
class Hostile(FaultyService):
    planned=False
    async def _retrieve(self, request):
        t=request.query_params['task_id']; self.asked['retrieve',t]+=1
        late=self.asked['retrieve',t]>1
        k=t.rpartition('-')[0]
        if not late: return JSONResponse(TASK)
        body=json.dumps(TASK)
        match k:
            case 'inf': body=body.replace('60.0','1e999')
            case 'neg': body=body.replace('60.0','-5')
            case 'e308': body=body.replace('60.0','1e308')
            case 'cpu0': body=json.dumps({**TASK,'resources':{'vcpu':0,'memory':1,'disk':1}})
            case 'cpuneg': body=json.dumps({**TASK,'resources':{'vcpu':-1,'memory':1,'disk':1}})
            case 'memneg': body=json.dumps({**TASK,'resources':{'vcpu':1,'memory':-1,'disk':1}})
            case 'mem0': body=json.dumps({**TASK,'resources':{'vcpu':1,'memory':0,'disk':1}})
            case 'membig': body=json.dumps({**TASK,'resources':{'vcpu':1,'memory':10**30,'disk':1}})
            case 'diskneg': body=json.dumps({**TASK,'resources':{'vcpu':1,'memory':1,'disk':-1}})
            case 'deepvol': body=json.dumps({**TASK,'volumes':[1]}).replace('[1]',deep(900))
            case 'bigint': body=body.replace('60.0','9'*5000)
            case 'order': body=json.dumps({**TASK,'agent_install_order':'x'})
            case 'hang': 
                import asyncio; await asyncio.sleep(3)
        return Response(body, media_type='application/json')
    async def _evaluate(self, socket):
        task,kind=await self._begin(socket,'evaluate')
        match kind:
            case 'deep': await socket.send_text('{"type":"result","data":'+deep(600)+'}'); return
            case 'deep9': await socket.send_text('{"type":"result","data":'+deep(960)+'}'); return
            case 'deepmany': await socket.send_text('{"type":"result","data":'+deep(100000)+'}'); return
            case 'deepstate':
                await socket.send_text('{"type":"eval_resume_state","data":{"a":'+deep(600)+'}}')
            case 'echo':
                await socket.send_json({'type':'message','data':SECRET+' '+socket.headers['x-api-key']})
                await socket.send_json({'type':'result','data':{'resolved':True,SECRET:[SECRET,socket.headers['x-api-key']]}}); return
            case 'echoerr':
                await socket.send_json({'type':'error','data':f'{SECRET} {SECRET[7:]} '+socket.headers['x-api-key']}); await socket.close(); return
            case 'bigintres': await socket.send_text('{"type":"result","data":{"score":'+'9'*4000+'}}'); return
            case 'bigintres2': await socket.send_text('{"type":"result","data":{"score":'+'9'*6000+'}}'); return
            case 'inf999': await socket.send_text('{"type":"result","data":{"score":1e999}}'); return
            case 'bigscore': await socket.send_text('{"type":"result","data":{"score":1e308}}'); return
            case 'states':
                n=0; t=time.time()
                while time.time()-t<3:
                    n+=1; await socket.send_json({'type':'eval_resume_state','data':{'n':n,'x':'y'*500000}})
                print('states',n)
            case 'flood':
                t=time.time(); n=0
                while time.time()-t<5:
                    n+=1; await socket.send_text('{"type":"message","data":"a"}')
                print('flood',n)
            case 'nul': await socket.send_text('{"type":"result","data":{"resolved":true,"a\\u0000b":"\\u0000"}}'); return
        await socket.send_json({'type':'result','data':{'resolved':True}})
    async def _score(self, request):
        return JSONResponse({'tasks_evaluated':[],'final_score':1.0,'metadata':{'m':SECRET,'k':SECRET[7:], SECRET:1}})
KINDS='inf neg e308 cpu0 cpuneg memneg mem0 membig diskneg deepvol bigint order hang deep deep9 deepmany deepstate echo echoerr bigintres bigintres2 inf999 bigscore nul states flood ok'.split()
def test_x(tracker, serve, tmp_path):
    s=Hostile([k+'-1' for k in KINDS],key=SECRET); serve(s)
    t=time.time()
    run=finished(tracker, headers={'Authorization':SECRET}, concurrency=30, provider='process', agent='tests.integration.test_service_runs:SilentAgent')
    print(time.time()-t, run.state, run.score, run.error)
    for k,v in trials(tracker,run).items(): print(k,v.state,v.category,v.cause,v.score,(v.message or '')[:150])
    print(json.dumps(tracker.results(run.id).get('final_evaluation')))
    import subprocess
    for p in (tmp_path/'home').rglob('*'):
        if p.is_file() and b's3cret' in p.read_bytes(): print('LEAK',p)
    print((tmp_path/'home'/'executor.log').read_text()[-3000:])
    for n in ('echo-1','echoerr-1','deep-1'): print(n,''.join(tracker.logs(run.id,n))[-600:])
    assert 0
